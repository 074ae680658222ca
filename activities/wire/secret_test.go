package wire_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/wire"
)

func TestNamesOfSecretsAreVariablesThatMeanNothingElse(t *testing.T) {
	t.Parallel()
	for name, good := range map[string]bool{
		"openai-api-key": true, "a": true, "token_2": true, "go": true, "pythonista": true, "path-of-glory": true,
		"": false, "Key": false, "2nd": false, "a b": false, "a/b": false, "../a": false, strings.Repeat("a", 65): false,
		"path": false, "ld-preload": false, "spillway-token": false, "pythonpath": false, "gomaxprocs": false, "home": false,
		"lc-all": false, "bash-env": false,
	} {
		if err := wire.CheckSecret(name); (err == nil) != good {
			t.Errorf("CheckSecret(%q) = %v, want good: %v", name, err, good)
		}
	}
	if err := wire.CheckSecrets([]string{"a-b", "c", "a_b"}); err == nil || !strings.Contains(err.Error(), "A_B") {
		t.Errorf("two secrets of one variable: %v", err)
	}
}

func TestNoPieceOfAStreamHasASecretInIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		secret := rapid.StringMatching(`[ab]{6,12}`).Draw(t, "secret")
		other := rapid.StringMatching(`[abc]{6,9}`).Draw(t, "other")
		mask := wire.NewMask(map[string]string{"one": secret + "\n", "two": "begin\n" + other + "\nend"})
		text := strings.Join(rapid.SliceOfN(rapid.OneOf(rapid.Just(secret), rapid.Just(other),
			rapid.StringMatching(`[abc\n]{0,9}`)), 0, 9).Draw(t, "text"), "")
		whole, rest := "", []byte(nil)
		for left := text; left != ""; {
			n := rapid.IntRange(1, len(left)).Draw(t, "piece")
			var told []byte
			told, rest = mask.Cut(append(rest, left[:n]...))
			whole, left = whole+string(told), left[n:]
		}
		whole += string(rest)
		if strings.Contains(whole, secret) || strings.Contains(whole, other) {
			t.Errorf("of %q with the secrets %q and %q was told %q", text, secret, other, whole)
		}
		if !strings.Contains(text, secret) && !strings.Contains(text, other) && whole != text {
			t.Errorf("of %q, in which there is no secret, was told %q", text, whole)
		}
	})
}

func TestWhatIsShortOrNothingIsNotMasked(t *testing.T) {
	t.Parallel()
	if mask := wire.NewMask(map[string]string{"pin": "1234", "none": ""}); mask != nil {
		t.Errorf("NewMask = %v, want none", mask)
	}
	var none *wire.Mask
	if told, rest := none.Cut([]byte("1234")); string(told) != "1234" || rest != nil || none.Text("1234") != "1234" {
		t.Errorf("no mask tells %q, %q", told, rest)
	}
}
