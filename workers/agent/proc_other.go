//go:build !linux

package agent

import (
	"errors"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// maxrssUnit is what a process's record of its highest memory is counted in.
const maxrssUnit = quantity.Bytes(1)

// memoryKills knows nothing: only Linux tells.
func memoryKills() int64 { return 0 }

func availableMemory() (quantity.Bytes, error) {
	return 0, errors.New("the host's memory is only known on linux: set the capacity")
}
