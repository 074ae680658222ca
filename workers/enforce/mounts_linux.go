package enforce

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// hierarchy is one tree of cgroups as this process sees it.
type hierarchy struct {
	// mount is where its topmost visible cgroup is.
	mount directory
	// own is the cgroup of this process.
	own directory
	// controllers are those bound to it; empty in v2, where a file tells.
	controllers []string
}

// above lists own and the cgroups around it up to the mount, innermost first.
func (h hierarchy) above() []directory {
	var all []directory
	for d := h.own; ; d = directory(filepath.Dir(string(d))) {
		all = append(all, d)
		if d == h.mount || len(d) <= len(h.mount) {
			return all
		}
	}
}

// hierarchies finds the v2 hierarchy, if it is mounted, and those of v1.
func hierarchies() (unified *hierarchy, legacy []hierarchy, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, nil, fmt.Errorf("find the cgroups of this host: %w", err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, nil, fmt.Errorf("find the cgroup of this process: %w", err)
	}
	unified, legacy = parseHierarchies(mounts, own)
	return unified, legacy, nil
}

// parseHierarchies combines /proc/self/mountinfo with /proc/self/cgroup. Where a hierarchy is mounted several times, the first mount
// from which this process's own cgroup can be seen counts.
// Sources: https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html and https://man7.org/linux/man-pages/man7/cgroups.7.html
func parseHierarchies(mounts, own []byte) (unified *hierarchy, legacy []hierarchy) {
	var seen []string
	for line := range bytes.Lines(mounts) {
		before, after, found := strings.Cut(string(line), " - ")
		place, what := strings.Fields(before), strings.Fields(after)
		if !found || len(place) < 6 || len(what) < 3 {
			continue
		}
		root, mount := unescape(place[3]), unescape(place[4])
		switch what[0] {
		case "cgroup2":
			if path, visible := ownPath(own, "", root, mount); visible && unified == nil {
				unified = &hierarchy{mount: directory(mount), own: path}
			}
		case "cgroup":
			var controllers []string
			for option := range strings.SplitSeq(what[2], ",") {
				if slices.Contains(legacyControllers, option) && !slices.Contains(seen, option) {
					controllers = append(controllers, option)
				}
			}
			if len(controllers) == 0 {
				continue
			}
			if path, visible := ownPath(own, controllers[0], root, mount); visible {
				seen = append(seen, controllers...)
				legacy = append(legacy, hierarchy{mount: directory(mount), own: path, controllers: controllers})
			}
		}
	}
	return unified, legacy
}

// ownPath finds this process's cgroup in the hierarchy of a controller ("" for v2) below a mount that shows the cgroups from root on.
func ownPath(own []byte, controller, root, mount string) (path directory, visible bool) {
	for line := range bytes.Lines(own) {
		fields := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(fields) != 3 || !slices.Contains(strings.Split(fields[1], ","), controller) || controller == "" && fields[0] != "0" {
			continue
		}
		inside, err := filepath.Rel(root, fields[2])
		if err != nil || inside == ".." || strings.HasPrefix(inside, "../") {
			return "", false
		}
		return directory(filepath.Join(mount, inside)), true
	}
	return "", false
}

// unescape undoes the octal escapes of mountinfo for space, tab, newline and backslash.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}
