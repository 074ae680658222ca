package command

import "testing"

func TestProcessesOfAContainerAreKnownByTheirControlGroups(t *testing.T) {
	t.Parallel()
	const id = "3f4ce2a86f1c95ad2d8e93f3e2f4c6d1b0a99e8877665544332211ffeeddccbb"
	for groups, want := range map[string]bool{
		"0::/system.slice/docker-" + id + ".scope\n":                                                      true,
		"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope/container\n": true,
		"12:devices:/docker/" + id + "\n11:memory:/docker/" + id + "\n":                                   true,
		"0::/system.slice/docker-000ce2a86f1c95ad2d8e93f3e2f4c6d1b0a99e8877665544332211ffeeddccbb.scope":  false,
		"0::/": false, "": false,
	} {
		if got := ofContainer([]byte(groups), id); got != want {
			t.Errorf("%q: %t", groups, got)
		}
	}
	for _, unread := range []string{"", "3f4ce2a86f1"} {
		if ofContainer([]byte("0::/docker/"+id), unread) {
			t.Errorf("an ID of %q is everybody's", unread)
		}
	}
}
