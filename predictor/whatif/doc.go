// Package whatif says what a run could come to before anything is applied: each time and cost that can be had, and what
// gets them.
package whatif
