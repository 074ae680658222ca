//go:build !linux

package command

// awaitUnwritten is for Linux: elsewhere a program that is open for writing can be executed, or waitForForks is all
// there is.
func awaitUnwritten(string) {}
