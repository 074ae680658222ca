// Package hindsight sets what was predicted of the attempts of a run beside what came.
package hindsight
