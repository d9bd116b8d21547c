"""Compaction, piece by piece: plan groups, rewrite one, map positions, commit; see `tasks.compact`.

```
scan plan ─> groups ─> rewrite (deletes applied, lineage kept) ─┐
                                                                ├─> rebase ─> one REWRITE commit
what others deleted meanwhile, old positions -> new positions ──┘
```
"""
