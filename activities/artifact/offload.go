package artifact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-ml/spillway/activities"
)

// OffloadThreshold is the size, in bytes, from which payloads leave the history when Offload is given no other.
// Temporal refuses a payload over 2 MiB and a history over 50 MiB: at 64 KiB a run may carry several hundred payloads
// before the first of the two matters.
const OffloadThreshold = 64 << 10

const (
	// driverName is stored in histories: changing it makes their payloads unreadable.
	driverName = "spillway-artifacts"
	driverType = "spillway"
	// claimDigest is the only key of a claim; the bytes need no other address.
	claimDigest = "digest"
)

// Offload returns the external storage that keeps payloads of threshold bytes or more in store, by digest, and a
// reference in the history. A threshold of 0 or less means OffloadThreshold. Equal payloads are one artifact, so an
// attempt or a replay that stores a payload again changes nothing. Every client and worker that reads the histories
// needs it, with the same store; the threshold may differ.
func Offload(store activities.Store, threshold int) converter.ExternalStorage {
	if threshold <= 0 {
		threshold = OffloadThreshold
	}
	return converter.ExternalStorage{
		Drivers:              []converter.StorageDriver{&driver{store: store}},
		PayloadSizeThreshold: threshold,
	}
}

// driver stores payloads, metadata included, as artifacts.
type driver struct {
	store activities.Store
}

// Name names the driver in histories.
func (*driver) Name() string { return driverName }

// Type names the implementation.
func (*driver) Type() string { return driverType }

// Store keeps each payload as one artifact.
func (d *driver) Store(
	ctx converter.StorageDriverStoreContext, payloads []*commonpb.Payload,
) ([]converter.StorageDriverClaim, error) {
	limiter := ctx.GetLimiter()
	return forEach(payloads, func(payload *commonpb.Payload) (claim converter.StorageDriverClaim, err error) {
		err = limiter.Permit(ctx.Context, payload, func() error {
			claim, err = d.storeOne(ctx.Context, payload)
			return err
		})
		return claim, err
	})
}

// Retrieve reads the artifact of each claim and checks it against its digest.
func (d *driver) Retrieve(
	ctx converter.StorageDriverRetrieveContext, claims []converter.StorageDriverClaim,
) ([]*commonpb.Payload, error) {
	limiter := ctx.GetLimiter()
	return forEach(claims, func(claim converter.StorageDriverClaim) (payload *commonpb.Payload, err error) {
		err = limiter.Permit(ctx.Context, claim, func() error {
			payload, err = d.retrieveOne(ctx.Context, claim)
			return err
		})
		return payload, err
	})
}

func (d *driver) storeOne(ctx context.Context, payload *commonpb.Payload) (converter.StorageDriverClaim, error) {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(payload)
	if err != nil {
		return converter.StorageDriverClaim{}, fmt.Errorf("store payload of %d bytes: %w", len(payload.GetData()), err)
	}
	ref, err := d.store.Put(ctx, bytes.NewReader(encoded))
	if err != nil {
		return converter.StorageDriverClaim{}, fmt.Errorf("store payload of %d bytes: %w", len(payload.GetData()), err)
	}
	return converter.StorageDriverClaim{ClaimData: map[string]string{claimDigest: ref.Digest}}, nil
}

func (d *driver) retrieveOne(ctx context.Context, claim converter.StorageDriverClaim) (*commonpb.Payload, error) {
	return d.retrieveClaim(ctx, claim.ClaimData)
}

func (d *driver) retrieveClaim(ctx context.Context, claim map[string]string) (*commonpb.Payload, error) {
	digest, found := claim[claimDigest]
	if !found {
		return nil, errors.New("retrieve payload: the reference in the history has no digest; it was not written by " +
			"this driver")
	}
	encoded, err := activities.ReadAll(ctx, d.store, digest)
	if err != nil {
		return nil, fmt.Errorf("retrieve payload: %w", err)
	}
	payload := new(commonpb.Payload)
	if err := proto.Unmarshal(encoded, payload); err != nil {
		return nil, fmt.Errorf("retrieve payload %s: %w", digest, err)
	}
	return payload, nil
}

// forEach applies do to all items at once and keeps their order; the SDK's limiter bounds how many really go on at a
// time.
func forEach[In, Out any](items []In, do func(In) (Out, error)) ([]Out, error) {
	results, errs := make([]Out, len(items)), make([]error, len(items))
	var all sync.WaitGroup
	for i, item := range items {
		all.Go(func() { results[i], errs[i] = do(item) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return results, nil
}
