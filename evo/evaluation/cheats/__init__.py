"""Known ways to look right without being right, each as a forger of outputs; published exploits of judges of kernels are the source.

Nothing here is compiled or launched: a cheat is judged by what it would hand over. `registry` lists them for a task; `outputs` forges
one output, `wrong_inputs` computes with other inputs than those given, `structure` is right in some cases and not in others.
"""
