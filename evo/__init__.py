"""What a run of triton-evolve is: tasks, tracing, evaluation, search, cluster and reporting.

Rooms, lowest first (imports point downward only; import-linter enforces it):

* `evo.errors`, `evo.records`  the exception tree and the frozen records everything speaks in
* `evo.descendants`            ends processes below this one whose parent is gone
* `evo.tasks`                  the Task contract and one kernel task per file
* `evo.tracing`                candidate source → launch plan → binaries, in sandboxed CPU processes
* `evo.evaluation`             oracle, gate, replay, timing, the interpreted tier, tuning
* `evo.search`                 engine, islands, selection, traps, operator bandit, front, budget
* `evo.cluster`                everything that imports ray
* `evo.reporting`              progress, status, export
* `evo.config`, `evo.registry`, `evo.main`  YAML, plug-in look-up, the command line
"""
