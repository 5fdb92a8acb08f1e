"""nsqlookupd: which nsqd has which topics, and the nsqd's side of telling it."""
