// Package cgroup finds the cgroups around a process in what the kernel says of it. It reads text and no files.
package cgroup

import (
	"bytes"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Hierarchy is one tree of cgroups as a process sees it. All paths are absolute.
type Hierarchy struct {
	// Mount is where its topmost visible cgroup is.
	Mount string
	// Own is the cgroup of the process, at or below Mount.
	Own string
	// Hidden says that the process's cgroup cannot be seen from Mount, which stands for it then.
	Hidden bool
	// Controllers are those of the wanted ones that are bound to it; nil in v2, where a file tells.
	Controllers []string
}

// Around lists Own and the cgroups around it up to Mount, innermost first.
func (h Hierarchy) Around() []string {
	var all []string
	for group := h.Own; ; group = path.Dir(group) {
		all = append(all, group)
		if group == h.Mount || len(group) <= len(h.Mount) {
			return all
		}
	}
}

// Parse combines /proc/self/mountinfo with /proc/self/cgroup: the v2 hierarchy, nil where none is mounted, and those of
// v1 with one of the wanted controllers. Where a hierarchy is mounted several times, the first mount from which the
// process's own cgroup can be seen counts, or else the first. Sources:
// https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html and
// https://man7.org/linux/man-pages/man7/cgroups.7.html
func Parse(mounts, own []byte, wanted []string) (unified *Hierarchy, legacy []Hierarchy) {
	var visible, hidden []Hierarchy
	for line := range bytes.Lines(mounts) {
		before, after, found := strings.Cut(string(line), " - ")
		place, what := strings.Fields(before), strings.Fields(after)
		if !found || len(place) < 6 || len(what) < 3 || !path.IsAbs(place[4]) {
			continue
		}
		h := Hierarchy{Mount: path.Clean(unescape(place[4]))}
		controller := ""
		switch what[0] {
		case "cgroup2":
		case "cgroup":
			for option := range strings.SplitSeq(what[2], ",") {
				if slices.Contains(wanted, option) {
					h.Controllers = append(h.Controllers, option)
				}
			}
			if len(h.Controllers) == 0 {
				continue
			}
			controller = h.Controllers[0]
		default:
			continue
		}
		if group, seen := below(own, controller, unescape(place[3])); seen {
			h.Own = path.Join(h.Mount, group)
			visible = append(visible, h)
		} else {
			h.Own, h.Hidden = h.Mount, true
			hidden = append(hidden, h)
		}
	}
	return first(append(visible, hidden...))
}

// first keeps of several mounts of a hierarchy the first.
func first(all []Hierarchy) (unified *Hierarchy, legacy []Hierarchy) {
	var seen []string
	for _, h := range all {
		if h.Controllers == nil {
			if unified == nil {
				unified = &h
			}
			continue
		}
		h.Controllers = slices.DeleteFunc(h.Controllers, func(name string) bool { return slices.Contains(seen, name) })
		if len(h.Controllers) > 0 {
			seen = append(seen, h.Controllers...)
			legacy = append(legacy, h)
		}
	}
	return unified, legacy
}

// below finds the process's cgroup in the hierarchy of a controller ("" for v2), as a path below root, the cgroup that
// a mount shows.
func below(own []byte, controller, root string) (group string, seen bool) {
	for line := range bytes.Lines(own) {
		fields := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(fields) != 3 || !slices.Contains(strings.Split(fields[1], ","), controller) ||
			controller == "" && fields[0] != "0" {
			continue
		}
		inside, err := filepath.Rel(root, fields[2])
		if err != nil || inside == ".." || strings.HasPrefix(inside, "../") {
			return "", false
		}
		return inside, true
	}
	return "", false
}

// unescape undoes the octal escapes of mountinfo for space, tab, newline and backslash.
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}
