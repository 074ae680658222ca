package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/loop"
)

// TestAServerThatIsThereNoMoreIsShownUntilAnotherStartsInItsPlace looks again and again which servers are there.
func TestAServerThatIsThereNoMoreIsShownUntilAnotherStartsInItsPlace(t *testing.T) {
	t.Parallel()
	type look struct {
		after time.Duration // since the look before
		there string        // ID and state directory of each besides this server
		gone  string
	}
	for name, looks := range map[string][]look{
		"nobody else":               {{0, "", ""}, {time.Minute, "", ""}},
		"one that stays":            {{0, "a/x", ""}, {time.Minute, "a/x", ""}},
		"one that goes":             {{0, "a/x", ""}, {1, "a/x", ""}, {1, "", "a"}, {time.Minute, "", "a"}},
		"for an hour":               {{0, "a/x", ""}, {goneFor - 1, "", "a"}, {1, "", ""}, {1, "", ""}},
		"one that is seen again":    {{0, "a/x", ""}, {time.Minute, "", "a"}, {1, "a/x", ""}, {time.Minute, "", "a"}},
		"one that is started anew":  {{0, "a/x", ""}, {time.Minute, "", "a"}, {1, "b/x", ""}, {time.Minute, "", "b"}},
		"this one, from before":     {{0, "a/own", ""}, {1, "", ""}},
		"one without a directory":   {{0, "a/", ""}, {1, "b/", "a"}},
		"two, the last one first":   {{0, "a/x b/y", ""}, {time.Minute, "b/y", "a"}, {time.Minute, "", "b a"}},
		"one beside those that are": {{0, "a/x b/y c/z", ""}, {time.Minute, "a/x c/z", "b"}},
	} {
		now, seen := time.Date(2026, 11, 28, 14, 30, 0, 0, time.UTC), sights{}
		for i, look := range looks {
			now = now.Add(look.after)
			there := []loop.Server{{ID: "self", Origin: "own", Seen: now}}
			for one := range strings.FieldsSeq(look.there) {
				id, origin, _ := strings.Cut(one, "/")
				there = append(there, loop.Server{ID: id, Origin: origin, Seen: now})
			}
			var got []string
			for _, one := range seen.look(there, now) {
				got = append(got, one.ID)
			}
			if told := strings.Join(got, " "); told != look.gone {
				t.Errorf("%s: look %d: got %q, want %q", name, i, told, look.gone)
			}
		}
	}
}
