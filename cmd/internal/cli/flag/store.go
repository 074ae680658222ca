package flag

import (
	"github.com/spillway-ml/spillway/activities/artifact/s3store"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
)

// Store is a flag that says where artifacts are kept.
type Store struct{ Value *string }

// String returns the location.
func (s Store) String() string {
	if s.Value == nil {
		return ""
	}
	return *s.Value
}

// Type is the placeholder in the usage.
func (s Store) Type() string { return "LOCATION" }

// Set reads "files" or "s3://bucket/prefix?region=eu-west-1".
func (s Store) Set(text string) error {
	if text != engine.InFiles {
		location, err := s3store.Parse(text)
		if err != nil {
			return &fault.UsageError{Problem: err.Error(), Hint: "write files, or " + s3store.Supported}
		}
		text = location.String()
	}
	*s.Value = text
	return nil
}
