package wait_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-ml/spillway/activities/wait"
)

func TestForWaitsUntilTheTimeOrTheContextEnds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		wait, ends time.Duration
		passed     bool
		took       time.Duration
	}{
		"the time passes":         {wait: time.Second, ends: time.Minute, passed: true, took: time.Second},
		"the context ends before": {wait: time.Minute, ends: time.Second, passed: false, took: time.Second},
		"no time":                 {wait: 0, ends: time.Second, passed: true},
		"less than no time":       {wait: -time.Second, ends: time.Second, passed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), test.ends)
				defer cancel()
				began := time.Now()
				passed := wait.For(ctx, test.wait)
				if took := time.Since(began); passed != test.passed || took != test.took {
					t.Errorf("For(%s) with a context of %s = %v after %s, want %v after %s", test.wait, test.ends, passed, took,
						test.passed, test.took)
				}
			})
		})
	}
}
