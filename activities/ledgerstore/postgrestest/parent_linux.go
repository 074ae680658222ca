package postgrestest

import "syscall"

// endWithParent has a server end when the tests are killed.
func endWithParent(process *syscall.SysProcAttr) { process.Pdeathsig = syscall.SIGQUIT }
