package nearest_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workflows/nearest"
)

func TestNames(t *testing.T) {
	t.Parallel()
	candidates := []string{"digits", "digits-large", "score", "train"}
	for name, test := range map[string]struct {
		typed string
		want  []string
	}{
		"a doubled letter is forgiven":       {"diggits", []string{"digits"}},
		"swapped neighbours count once":      {"dgiits", []string{"digits"}},
		"case does not matter":               {"SCORE", []string{"score"}},
		"a beginning offers all that follow": {"dig", []string{"digits", "digits-large"}},
		"something else offers nothing":      {"kubernetes", nil},
		"nothing typed offers nothing":       {"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, nearest.Names(test.typed, candidates)); diff != "" {
				t.Errorf("Names(%q) (-want +got):\n%s", test.typed, diff)
			}
		})
	}
}

// slow is the definition, without the table: the oracle for short words.
func slow(a, b []rune) int {
	if len(a) == 0 || len(b) == 0 {
		return len(a) + len(b)
	}
	replace := slow(a[1:], b[1:])
	if a[0] != b[0] {
		replace++
	}
	best := min(replace, slow(a[1:], b)+1, slow(a, b[1:])+1)
	if len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] {
		best = min(best, slow(a[2:], b[2:])+1)
	}
	return best
}

func TestDistanceIsWhatItsDefinitionSays(t *testing.T) {
	t.Parallel()
	word := rapid.StringOfN(rapid.RuneFrom([]rune("abé")), 0, 5, -1)
	rapid.Check(t, func(t *rapid.T) {
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		if got, want := nearest.Distance(a, b), slow([]rune(a), []rune(b)); got != want {
			t.Fatalf("Distance(%q, %q) = %d, want %d", a, b, got, want)
		}
	})
}

func ExampleNames() {
	fmt.Println(nearest.Names("digist", []string{"digits", "train"}))
	// Output: [digits]
}
