// Package usage predicts how much memory and CPU will be used, from what was used before.
package usage
