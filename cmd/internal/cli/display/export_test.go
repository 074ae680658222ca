package display

// Known is of how many runs a log knows.
func Known(l *Log) int { return len(l.runs) }
