"""Rules: what a reader of the mounted files may see and do.

rule.py           `Rule`: operations, paths, mode; checked when it is made
view.py           `View`: rules by name, and the one decision function
ruled_volume.py   `RuledVolume`: a volume as a view shows it; `RuledSnapshotVolume`: one with snapshots, as the rules of
                  its route show it
met.py            `Met`: the rules of mode `interrupt` that a verb has met
"""
