package flag

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
)

// SharedOut allows results in a directory that others can change.
const SharedOut = "shared-out"

// AddSharedOut adds the flag to a command that writes what flag names.
func AddSharedOut(set *pflag.FlagSet, shared *bool, flag string) {
	set.BoolVar(shared, SharedOut, false,
		"let "+flag+" be in a directory that others can write to, or that another user owns")
}

// RefusedOut is the error of a flag that names where results go, and of what it says.
func RefusedOut(flag, value string, err error) error {
	wrong, ok := errors.AsType[*safefile.Error](err)
	if !ok {
		return &fault.UsageError{
			Problem: fmt.Sprintf("%s %s: %v", flag, value, fault.WithoutPath(err)),
			Hint:    "give a place that can be written",
		}
	}
	hint := wrong.Advice
	if wrong.Shared {
		hint += ", or allow this one with --" + SharedOut
	}
	return &fault.UsageError{Problem: flag + ": " + wrong.Path + " " + wrong.Wrong, Hint: hint}
}
