package proctest_test

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/proctest"
)

func TestWhatThisProcessListensOnIsFound(t *testing.T) {
	t.Parallel()
	own := os.Getpid()
	proctest.Need(t, own)
	listen := func(network, address string) net.Listener {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
		if err != nil {
			t.Skipf("listen on %s: %v", address, err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		return listener
	}
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		t.Run(address, func(t *testing.T) { //nolint:paralleltest // they share a process
			want := netip.MustParseAddrPort(listen("tcp", address).Addr().String())
			if got := proctest.TCP(t, own); !slices.Contains(got, want) {
				t.Errorf("this process listens on %v, want %s among them", got, want)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "socket")
	listen("unix", path)
	listen("unix", "@spillway-proctest")
	for _, want := range []string{path, "@spillway-proctest"} {
		if got := proctest.Unix(t, own); !slices.Contains(got, want) {
			t.Errorf("this process listens on %q, want %s among them", got, want)
		}
	}
	if got := proctest.TCP(t); len(got) > 0 {
		t.Errorf("no process listens on %v", got)
	}
}
