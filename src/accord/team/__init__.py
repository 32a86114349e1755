"""Teams: a group chat whose members take turns, and a crew that divides tasks among its members."""
