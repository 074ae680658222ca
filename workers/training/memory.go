package training

import (
	"bufio"
	"bytes"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/cgroup"
)

// availableMemory is what planning may take: what the host can give to new processes without swapping, and no more than
// the limits of the cgroups around this process leave, so that an attempt is not killed by its own plan. It is false
// where neither tells.
func availableMemory(root fs.FS) (quantity.Bytes, bool) {
	limited, bounded := limitedMemory(root)
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return limited, bounded
	}
	kibibytes, known := field(text, "MemAvailable:")
	switch host := quantity.Bytes(kibibytes) << 10; {
	case !known:
		return limited, bounded
	case bounded:
		return min(host, limited), true
	default:
		return host, true
	}
}

// limitedMemory is what the limits of the cgroups around this process leave; false where none bounds it.
func limitedMemory(root fs.FS) (left quantity.Bytes, bounded bool) {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	mounts, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return 0, false
	}
	unified, legacy := cgroup.Parse(mounts, groups, []string{"memory"})
	if unified != nil {
		legacy = append(legacy, *unified)
	}
	left = math.MaxInt64
	for _, h := range legacy {
		names := [3]string{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
		if h.Controllers == nil {
			names = [3]string{"memory.max", "memory.current", "inactive_file"}
		}
		for _, group := range h.Around() {
			if room, limited := groupRoom(root, strings.TrimPrefix(group, "/"), names); limited {
				left, bounded = min(left, room), true
			}
		}
	}
	if !bounded {
		return 0, false
	}
	return left, true
}

// groupRoom is what the limit of one cgroup leaves: files that it caches can be dropped. names are those of its limit,
// of its use and of the cache.
func groupRoom(root fs.FS, group string, names [3]string) (quantity.Bytes, bool) {
	number := func(file string) (int64, bool) {
		text, err := fs.ReadFile(root, path.Join(group, file))
		if err != nil {
			return 0, false
		}
		value, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return value, err == nil
	}
	limit, limited := number(names[0]) // "max" is none
	used, known := number(names[1])
	if !limited || !known || quantity.Bytes(limit) >= unlimited {
		return 0, false
	}
	cache := int64(0)
	if text, err := fs.ReadFile(root, path.Join(group, "memory.stat")); err == nil {
		cache, _ = field(text, names[2])
	}
	return quantity.Bytes(max(0, limit-max(0, used-cache))), true
}

// unlimited is what cgroup v1 has for no limit, or more: no host has as much.
const unlimited = quantity.Bytes(1) << 60

// field is the number after a word that begins a line; false where there is none from 0.
func field(text []byte, word string) (int64, bool) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) >= 2 && fields[0] == word {
			value, err := strconv.ParseInt(fields[1], 10, 64)
			return value, err == nil && value >= 0
		}
	}
	return 0, false
}
