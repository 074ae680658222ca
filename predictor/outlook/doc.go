// Package outlook says what a run comes to: when it ends, what it costs, and what else could be had.
package outlook
