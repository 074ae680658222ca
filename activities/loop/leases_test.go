package loop_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestHostsAreThoseWithALease(t *testing.T) {
	t.Parallel()
	js := stream(t)
	leases, err := loop.NewLeases(t.Context(), js, nil)
	if err != nil {
		t.Fatal(err)
	}
	hosts := func(want ...predictor.Host) {
		t.Helper()
		got, err := leases.Hosts(t.Context())
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("Hosts: %v (-want +got):\n%s", err, diff)
		}
	}
	put := func(host predictor.Host) {
		t.Helper()
		if err := leases.PutHost(t.Context(), host); err != nil {
			t.Fatal(err)
		}
	}
	hosts()
	room := quantity.Size{CPU: 2000, Memory: quantity.GiB}
	laptop := predictor.Host{
		ID: "laptop.local", Capacity: room, Free: room, PricePerHour: quantity.USD,
		At: time.Unix(1, 0).UTC(),
	}
	odd := predictor.Host{ID: "Jane's laptop * >", Capacity: room, At: time.Unix(2, 0).UTC()}
	put(odd)
	put(laptop)
	hosts(odd, laptop)
	laptop.Free = quantity.Size{}
	put(laptop)
	bucket, err := js.KeyValue(t.Context(), wire.HostBucket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.PutString(t.Context(), "newer-agent", `{"v":99}`); err != nil {
		t.Fatal(err)
	}
	hosts(odd, laptop)
	for range 2 {
		if err := leases.DropHost(t.Context(), odd.ID); err != nil {
			t.Fatal(err)
		}
		hosts(laptop)
	}
	if err := leases.PutHost(t.Context(), predictor.Host{}); err == nil {
		t.Error("a host without an ID was leased")
	}
}

func TestAHostThatFallsSilentLeavesTheInventory(t *testing.T) {
	t.Parallel()
	leases, err := loop.NewLeases(t.Context(), stream(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := leases.PutHost(t.Context(), predictor.Host{ID: "silent"}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for {
		hosts, err := leases.Hosts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); len(hosts) == 0 {
			if took < loop.Lease-time.Second {
				t.Errorf("the lease ended after %v, want about %v", took, loop.Lease)
			}
			return
		} else if took > 3*loop.Lease {
			t.Fatalf("the host is still there after %v", took)
		}
		time.Sleep(100 * time.Millisecond) // the lease is real time of the server
	}
}
