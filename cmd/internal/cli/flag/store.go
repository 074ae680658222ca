package flag

import (
	"github.com/spillway-ml/spillway/activities/artifact/s3store"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
)

// store is a flag that says where artifacts are kept.
type store struct{ value *string }

// String returns the location.
func (s store) String() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// Type is the placeholder in the usage.
func (s store) Type() string { return "LOCATION" }

// Set reads "files" or "s3://bucket/prefix?region=eu-west-1".
func (s store) Set(text string) error {
	if text != engine.InFiles {
		location, err := s3store.Parse(text)
		if err != nil {
			return &fault.UsageError{Problem: err.Error(), Hint: "write files, or " + s3store.Supported}
		}
		text = location.String()
	}
	*s.value = text
	return nil
}
