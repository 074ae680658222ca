package space

import (
	"fmt"
	"syscall"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Disk is what a file system has.
type Disk struct {
	// Size is all of it, Free what this user may still write.
	Size, Free quantity.Bytes
}

// DiskOf returns what the file system has in which path lies.
func DiskOf(path string) (Disk, error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(path, &stat); err != nil {
		return Disk{}, fmt.Errorf("look how much room there is for %s: %w", path, err)
	}
	block := quantity.Bytes(stat.Bsize)
	return Disk{Size: quantity.Bytes(stat.Blocks) * block, Free: quantity.Bytes(stat.Bavail) * block}, nil
}

const (
	// scarceShare and scarceBytes are how much must be free for artifacts to be taken, whichever is less: the bytes are
	// the room that the engine's databases and the Records of a day need.
	scarceShare = 20 // a twentieth, 5%
	scarceBytes = quantity.GiB
	// easeShare is by how much more must be free before artifacts are taken again: a tenth of the above, so that the
	// stack does not waver between both.
	easeShare = 10
)

// Scarce says whether there is so little room that nothing must grow that is not needed to go on. Was is what it said
// the last time.
func (d Disk) Scarce(was bool) bool {
	least := min(d.Size/scarceShare, scarceBytes)
	if was {
		least += least / easeShare
	}
	return d.Free < least
}
