package engine

import (
	"testing"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestCollectionsSuitTheHostAndWhatTheUserSays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		memory      quantity.Bytes
		environment map[string]string
		want        collections
	}{
		"a large host":      {memory: 64 * quantity.GiB, want: collections{33, 8 * quantity.GiB}},
		"a small host":      {memory: quantity.GiB, want: collections{33, 512 * quantity.MiB}},
		"a host of no size": {want: collections{percent: 33}},
		"the user has a pace": {
			memory: 64 * quantity.GiB, environment: map[string]string{"GOGC": "200"},
			want: collections{limit: 8 * quantity.GiB},
		},
		"the user has a limit": {
			memory: 64 * quantity.GiB, environment: map[string]string{"GOMEMLIMIT": "1GiB"},
			want: collections{percent: 33},
		},
		"empty says nothing": {
			memory: quantity.GiB, environment: map[string]string{"GOGC": "", "GOMEMLIMIT": ""},
			want: collections{33, 512 * quantity.MiB},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := collectionsFor(test.memory, func(name string) (string, bool) {
				value, set := test.environment[name]
				return value, set
			})
			if got != test.want {
				t.Errorf("collections for %s and %v: got %+v, want %+v", test.memory, test.environment, got, test.want)
			}
		})
	}
}
