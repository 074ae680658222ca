//go:build !linux

package postgrestest

import "syscall"

// endWithParent does nothing: only Linux tells a process that its parent has ended.
func endWithParent(*syscall.SysProcAttr) {}
