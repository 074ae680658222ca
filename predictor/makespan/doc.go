// Package makespan says when the last of many tasks is done that slots take as they become free.
package makespan
