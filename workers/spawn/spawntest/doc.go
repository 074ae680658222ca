// Package spawntest shows in tests that a helper program ends with the process that started it, and what other users
// can run.
package spawntest
