package artifact

import (
	"context"
	"fmt"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/proxy"
	sdkpb "go.temporal.io/api/sdk/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-ml/spillway/activities"
)

// Restore puts back, in all of message, the payloads that Offload has taken out: a history is then whole without the
// store. Errors wrap activities.ErrMissing or activities.ErrCorrupt where these are the cause.
func Restore(ctx context.Context, store activities.Store, message proto.Message) error {
	d := &driver{store: store}
	err := proxy.VisitPayloads(ctx, message, proxy.VisitPayloadsOptions{
		SkipSearchAttributes: true,
		Visitor: func(_ *proxy.VisitPayloadsContext, payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
			whole := make([]*commonpb.Payload, len(payloads))
			for i, payload := range payloads {
				var err error
				if whole[i], err = d.restore(ctx, payload); err != nil {
					return nil, err
				}
			}
			return whole, nil
		},
	})
	if err != nil {
		return fmt.Errorf("restore payloads: %w", err)
	}
	return nil
}

// Stored is the digest of the artifact that a payload stands for, which Payload reads; stored is false for one that
// Offload has not taken out.
func Stored(payload *commonpb.Payload) (digest string, stored bool, err error) {
	claim, stored, err := claimOf(payload)
	return claim[claimDigest], stored, err
}

// Payload reads the payload that Offload has taken out, by the digest of its artifact. Errors wrap
// activities.ErrMissing or activities.ErrCorrupt where these are the cause.
func Payload(ctx context.Context, store activities.Store, digest string) (*commonpb.Payload, error) {
	return (&driver{store: store}).retrieveClaim(ctx, map[string]string{claimDigest: digest})
}

// restore returns the payload that a reference stands for; any other payload is returned as it is.
func (d *driver) restore(ctx context.Context, payload *commonpb.Payload) (*commonpb.Payload, error) {
	claim, stored, err := claimOf(payload)
	if err != nil || !stored {
		return payload, err
	}
	return d.retrieveClaim(ctx, claim)
}

// claimOf is the claim in a payload that stands for one that a driver of Offload has stored; stored is false for any
// other.
func claimOf(payload *commonpb.Payload) (claim map[string]string, stored bool, err error) {
	var reference sdkpb.ExternalStorageReference
	metadata := payload.GetMetadata()
	if string(metadata["encoding"]) != "json/protobuf" ||
		string(metadata["messageType"]) != string(reference.ProtoReflect().Descriptor().FullName()) {
		return nil, false, nil
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(payload.GetData(), &reference); err != nil {
		return nil, false, fmt.Errorf("read a reference to a payload: %w", err)
	}
	if reference.GetDriverName() != driverName {
		return nil, false, nil // another program's storage
	}
	return reference.GetClaimData(), true, nil
}
