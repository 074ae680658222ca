package flag

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestAmountsAreReadExactly(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]quantity.Money{
		"0.50": quantity.USD / 2, "$2": 2 * quantity.USD,
		"0.0000021": 2_100_000, "1e-3": quantity.USD / 1000,
	} {
		var got quantity.Money
		if err := (dollars{value: &got, positive: true}).Set(text); err != nil || got != want {
			t.Errorf("%s: got %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestNoTextMakesAFlagNegativeOrEndless(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[-+]?[0-9.]{0,5}([eE][-+]?[0-9]{1,4})?(s|m|h)?`)).
			Draw(t, "text")
		var money quantity.Money
		var wait time.Duration
		ratio := 1.0
		if (dollars{value: &money, positive: true}).Set(text) == nil && money <= 0 {
			t.Errorf("dollars %q = %d", text, money)
		}
		if (Span{Value: &wait}).Set(text) == nil && wait <= 0 {
			t.Errorf("span %q = %s", text, wait)
		}
		if (factor{&ratio}).Set(text) == nil && !(ratio > 0 && ratio < 1e308) {
			t.Errorf("factor %q = %v", text, ratio)
		}
	})
}

func TestCPUListsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfNDistinct(rapid.IntRange(0, 200), 1, 20, rapid.ID).Draw(t, "cpus")
		mask := make([]bool, 201)
		for _, cpu := range want {
			mask[cpu] = true
		}
		var sorted, got []int
		for cpu, in := range mask {
			if in {
				sorted = append(sorted, cpu)
			}
		}
		text := FormatCPUs(sorted)
		if err := (CPUList{&got}).Set(text); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if diff := cmp.Diff(sorted, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	})
}

func TestCPUsAreSharedBetweenTheVenues(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		allowed, pool, functions []int
		burst                    bool
		wantPool, wantFunctions  []int
	}{
		"two CPUs are shared evenly":                 {[]int{0, 1}, nil, nil, true, []int{0}, []int{1}},
		"an odd one goes to the pool":                {[]int{2, 3, 7}, nil, nil, true, []int{2, 3}, []int{7}},
		"a single CPU is shared by both":             {[]int{4}, nil, nil, true, []int{4}, []int{4}},
		"without burst the pool has all":             {[]int{0, 1, 2}, nil, nil, false, []int{0, 1, 2}, nil},
		"functions get what a given pool leaves":     {[]int{0, 1, 2, 3}, []int{3}, nil, true, []int{3}, []int{0, 1, 2}},
		"the pool gets what given functions leave":   {[]int{0, 1, 2, 3}, nil, []int{0}, true, []int{1, 2, 3}, []int{0}},
		"both as given, also when they overlap":      {[]int{0, 1}, []int{0, 1}, []int{1}, true, []int{0, 1}, []int{1}},
		"a pool of all leaves functions to share it": {[]int{0, 1}, []int{0, 1}, nil, true, []int{0, 1}, []int{0, 1}},
		"given functions are ignored without burst":  {[]int{0, 1}, nil, []int{1}, false, []int{0, 1}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, functions, err := splitCPUs(test.allowed, test.pool, test.functions, test.burst)
			if err != nil || !cmp.Equal(pool, test.wantPool) || !cmp.Equal(functions, test.wantFunctions) {
				t.Errorf("got %v and %v, %v; want %v and %v", pool, functions, err, test.wantPool, test.wantFunctions)
			}
		})
	}
}

func TestInputsAreFoundOut(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`{"a":1}`: true, "\t[1]": true, `"text"`: true, `3`: true, `-1.5`: true, `true`: true, `null`: true, `{broken`: true,
		`input.json`: false, `./3.json`: false, `true.json`: false,
	} {
		if got := looksLikeJSON(text); got != want {
			t.Errorf("looksLikeJSON(%s) = %v, want %v", text, got, want)
		}
	}
	if got, err := ReadInput("-", strings.NewReader(` {"a": 1} `)); err != nil || string(got) != ` {"a": 1} ` {
		t.Errorf("standard input: got %s, %v", got, err)
	}
	if got, err := ReadInput("", nil); err != nil || got != nil {
		t.Errorf("none: got %s, %v", got, err)
	}
	if _, err := ReadInput("-", strings.NewReader(`"`+strings.Repeat("x", inputLimit)+`"`)); err == nil {
		t.Error("an input over the limit is read")
	}
}

// TestALocationNeedsARegion of its own or of the configuration of AWS. It is not parallel: it sets variables.
func TestALocationNeedsARegion(t *testing.T) {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	var value string
	f := Store{Value: &value}
	err := f.Set("s3://bucket/p")
	if wrong, ok := errors.AsType[*fault.UsageError](err); !ok || !strings.Contains(wrong.Hint, "region=") {
		t.Errorf("without a region: %v", err)
	}
	for _, text := range []string{
		"files", "s3://bucket/p?region=eu-west-1", "s3://bucket/p?endpoint=http://127.0.0.1:9000",
	} {
		if err := f.Set(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	t.Setenv("AWS_REGION", "eu-west-1")
	if err := f.Set("s3://bucket/p"); err != nil {
		t.Errorf("with AWS_REGION: %v", err)
	}
}
