// Package usage predicts how much memory and CPU will be used, and for how long, from what was used before.
package usage
