package flag

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"

	"github.com/spillway-ml/spillway/activities/artifact/s3store"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
)

// Store is a flag that says where artifacts are kept.
type Store struct {
	Value *string
	// PlaceOnly takes a location without a region, too: nobody goes there, its bucket and prefix are what counts.
	PlaceOnly bool
}

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
		// Of what is not AWS, the region does not matter.
		if !s.PlaceOnly && location.Region == "" && location.Endpoint == "" && configuredRegion() == "" {
			return &fault.UsageError{
				Problem: "it names no region, and neither the environment nor ~/.aws/config gives one",
				Hint:    "add region=REGION, such as s3://" + location.Bucket + "/" + location.Prefix + "?region=eu-west-1",
			}
		}
		text = location.String()
	}
	*s.Value = text
	return nil
}

// configuredRegion is the region that AWS's own tools take, from AWS_REGION or the profile; empty for none. A
// configuration that cannot be read is told by the engine.
func configuredRegion() string {
	shared, err := config.LoadDefaultConfig(context.Background(), config.WithLogger(logging.Nop{}))
	if err != nil {
		return "unknown"
	}
	return shared.Region
}
