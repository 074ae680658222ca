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

// restore returns the payload that a reference stands for; any other payload is returned as it is.
func (d *driver) restore(ctx context.Context, payload *commonpb.Payload) (*commonpb.Payload, error) {
	var reference sdkpb.ExternalStorageReference
	metadata := payload.GetMetadata()
	if string(metadata["encoding"]) != "json/protobuf" ||
		string(metadata["messageType"]) != string(reference.ProtoReflect().Descriptor().FullName()) {
		return payload, nil
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(payload.GetData(), &reference); err != nil {
		return nil, fmt.Errorf("read a reference to a payload: %w", err)
	}
	if reference.GetDriverName() != driverName {
		return payload, nil // another program's storage
	}
	return d.retrieveClaim(ctx, reference.GetClaimData())
}
