"""Delta joins: a join of tables kept as another table, round by round, without join state.

```
definition ─ plan ─> what each table is asked for, and by which index
round: changes of every table (sides) ─> rows of the root they reach (roots)
       ─> those rows joined in the old and in the new version (evaluate) ─> difference ─> staged
```
"""
