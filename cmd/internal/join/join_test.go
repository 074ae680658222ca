package join_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/join"
)

func TestATokenIsReadAsItIsPrinted(t *testing.T) {
	t.Parallel()
	token := join.Token{Authority: [32]byte{1, 2, 31: 0xff}, Secret: "a-Secret_1"}
	read, err := join.ParseToken(token.String() + "\n")
	if err != nil || read != token {
		t.Errorf("got %v and error %v, want %v", read, err, token)
	}
	for name, text := range map[string]string{
		"nothing": "", "a secret alone": "a-Secret_1", "a digest alone": strings.Repeat("0a", 32),
		"a digest that is too short": strings.Repeat("0a", 31) + ".secret",
		"a token with more behind":   token.String() + " x",
	} {
		if _, err := join.ParseToken(text); err == nil {
			t.Errorf("%s was taken", name)
		} else if strings.Contains(err.Error(), "ecret_1") {
			t.Errorf("%s: the error repeats the secret: %v", name, err)
		}
	}
}

func TestNamesOfHosts(t *testing.T) {
	t.Parallel()
	for name, fine := range map[string]bool{
		"gpu-1": true, "gpu-1.example.com": true, "A_b": true, "7": true,
		"": false, "a b": false, "a*": false, ">": false, "a..b": false, "-a": false, "a.": false, "a/b": false, "ä": false,
		"host:a": false, strings.Repeat("a", join.MaxName): true, strings.Repeat("a", join.MaxName+1): false,
	} {
		if err := join.CheckName(name); (err == nil) != fine {
			t.Errorf("%.80q: got %v, want it to be fine: %t", name, err, fine)
		}
	}
}

func TestVersionsMayBeOneApart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		host, server string
		fine         bool
	}{
		{"v0.4.2", "v0.4.9", true},
		{"v0.4.2", "v0.5.0", true},
		{"v0.5.0", "v0.4.2", true},
		{"v0.3.9", "v0.5.0", false},
		{"v0.6.0", "v0.4.0", false},
		{"v1.4.0", "v0.4.0", false},
		{"v0.4.0", "v1.4.0", false},
		{"0.4.0+dirty", "v0.9.0", false},
		{"dev", "v0.9.0", true},
		{"v0.0.0-20261127000000-0123456789ab", "v0.9.0", true},
	} {
		if err := join.CheckVersions(c.host, c.server); (err == nil) != c.fine {
			t.Errorf("host %s, server %s: got %v, want it to be fine: %t", c.host, c.server, err, c.fine)
		}
	}
}

func TestClocksAreTold(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	for gap, want := range map[time.Duration]string{
		0: "", 30 * time.Second: "", -30 * time.Second: "", 3 * time.Minute: "3m0s ahead of", -time.Hour: "1h0m0s behind",
	} {
		err := join.CheckClocks(now.Add(gap), now)
		if want == "" && err == nil || want != "" && err != nil && strings.Contains(err.Error(), want) {
			continue
		}
		t.Errorf("%v apart: got %v, want %q", gap, err, want)
	}
	if err := join.CheckClocks(time.Time{}, now); err != nil {
		t.Errorf("without a time: %v", err)
	}
}
