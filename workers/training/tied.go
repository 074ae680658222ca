package training

import "github.com/spillway-ml/spillway/workers/exec"

// tie is what a part pays for trained parameters that other parts read as well (see [exec.Tied]), in a step. Of T bytes
// that two parts read, the one that trains them has them and their gradient anyhow; the other one
//
//	holds 2 T, a copy and its gradient, and is sent T and returns T, over every border in between
//
// Processes keep the message of each direction in shared memory, where both touch it: 2 T more in either.
type tie struct {
	copies float64 // bytes of parameters of other parts
	lent   float64 // bytes of messages of both directions, of those that this part trains and of its copies
	passed float64 // bytes that go over the border to the next part and back, each way
}

// ties prices the tied parameters by the part of each operation.
func ties(tied []exec.Tied, home []int, parts int) []tie {
	all := make([]tie, parts)
	for _, t := range tied {
		bytes, owner, last := float64(t.Bytes), parts, 0
		reads := make([]bool, parts)
		for _, op := range t.Ops {
			reads[home[op]] = true
			owner, last = min(owner, home[op]), max(last, home[op])
		}
		for part := owner + 1; part <= last; part++ {
			all[part-1].passed += bytes
			if !reads[part] {
				continue
			}
			all[part].copies += bytes
			all[part].lent += 2 * bytes
			all[owner].lent += bytes // the gradient of each reader
		}
		if last > owner {
			all[owner].lent += bytes
		}
	}
	return all
}
