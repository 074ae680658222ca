package edge

import (
	"net"
	"testing"
)

// at is a connection from an address.
type at struct {
	net.Conn
	from net.TCPAddr
}

func (a at) RemoteAddr() net.Addr { return &a.from }

// TestAttackOneMachineHasANetworkOfAddresses: of IPv6 the addresses of one network count together.
func TestAttackOneMachineHasANetworkOfAddresses(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"10.0.0.7": "10.0.0.7", "::ffff:10.0.0.7": "10.0.0.7", "::1": "::",
		"2001:db8:1:2::1": "2001:db8:1:2::", "2001:db8:1:2:ffff::9": "2001:db8:1:2::", "2001:db8:1:3::1": "2001:db8:1:3::",
	} {
		if got := addressOf(at{from: net.TCPAddr{IP: net.ParseIP(from)}}).String(); got != want {
			t.Errorf("%s counts as %s, want %s", from, got, want)
		}
	}
}
