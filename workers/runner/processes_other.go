//go:build !linux

package runner

import (
	"errors"
	"os"
	"os/exec"
	"syscall"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// startOf refuses: functions run on Linux.
func startOf(*exec.Cmd) error { return errors.New("commands run as functions on Linux only") }

func endAll(int) {}

func signalAll(int, syscall.Signal) int { return 0 }

func peak(*os.ProcessState) quantity.Bytes { return 0 }
