package fault_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

func TestOnlyWhatTheCommandSaysIsUsage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		want bool
	}{
		{&fault.UsageError{Problem: "no such file"}, true},
		{fmt.Errorf("show: %w", web.NoRun("digits-1")), true},
		{web.Invalid("", "no JSON"), true},
		{web.Unprocessable("", "too large"), true},
		{web.Conflict("", "it has ended"), false},
		{&web.Error{Status: 404, Message: "the API has no GET /api/v1/runs/x/y", NoRoute: true}, false},
		{errors.New("disk full"), false},
		{nil, false},
	} {
		if got := fault.IsUsage(test.err); got != test.want {
			t.Errorf("IsUsage(%v) = %v, want %v", test.err, got, test.want)
		}
	}
}
