package loop_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestHostsAreThoseWithALease(t *testing.T) {
	t.Parallel()
	js, began := stream(t), time.Now()
	leases, err := loop.NewLeases(t.Context(), js, nil)
	if err != nil {
		t.Fatal(err)
	}
	hosts := func(want ...predictor.Host) {
		t.Helper()
		got, err := leases.Hosts(t.Context())
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(predictor.Host{}, "At")); err != nil || diff != "" {
			t.Errorf("Hosts: %v (-want +got):\n%s", err, diff)
		}
		for _, host := range got {
			if host.At.Before(began) || host.At.After(time.Now()) {
				t.Errorf("host %s had its lease taken at %s by its own clock, and not by that of NATS", host.ID, host.At)
			}
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
	if left := leases.Left(); len(left) > 0 {
		t.Errorf("%v have given their leases back, and nobody has", left)
	}
	for range 2 {
		if err := leases.DropHost(t.Context(), odd.ID); err != nil {
			t.Fatal(err)
		}
		hosts(laptop)
		if left := leases.Left(); len(left) != 1 || left[odd.ID].Before(began) {
			t.Errorf("%v have given their leases back, want %q", left, odd.ID)
		}
	}
	put(odd)
	hosts(odd, laptop)
	if left := leases.Left(); len(left) > 0 {
		t.Errorf("%v have given their leases back, and the one that had has one again", left)
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
