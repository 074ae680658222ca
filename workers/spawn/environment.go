package spawn

import (
	"maps"
	"slices"
)

// Inherited returns what a user's program is given of this process's environment: where programs, the home and
// temporary files are, the language and the time zone. Nothing of it could be a secret.
func Inherited(lookup func(name string) (value string, set bool)) map[string]string {
	return Variables(lookup, "PATH", "HOME", "TMPDIR", "LANG", "TZ")
}

// Variables returns those of the named variables that lookup finds.
func Variables(lookup func(name string) (value string, set bool), names ...string) map[string]string {
	values := make(map[string]string)
	for _, name := range names {
		if value, set := lookup(name); set {
			values[name] = value
		}
	}
	return values
}

// Environment returns the variables as os/exec takes them, sorted by name.
func Environment(values map[string]string) []string {
	pairs := make([]string, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		pairs = append(pairs, name+"="+values[name])
	}
	return pairs
}
