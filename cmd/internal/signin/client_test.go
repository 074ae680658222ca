package signin

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/oauth2"
)

func TestTheSecretIsShownAsTheProviderTakesIt(t *testing.T) {
	t.Parallel()
	type ways = []oauth2.AuthStyle
	const header, form = oauth2.AuthStyleInHeader, oauth2.AuthStyleInParams
	for _, c := range []struct {
		name, secret string
		methods      []string
		inForm       bool
		want         ways
	}{
		{"it says nothing", "x", nil, false, ways{header}},
		{"the header alone", "x", []string{"client_secret_basic"}, false, ways{header}},
		{"the form alone", "x", []string{"none", "client_secret_post"}, false, ways{form}},
		{"both", "x", []string{"client_secret_post", "client_secret_basic"}, false, ways{header, form}},
		{"both, and it is the form", "x", []string{"client_secret_basic", "client_secret_post"}, true, ways{form}},
		{"others", "x", []string{"private_key_jwt"}, false, ways{header}},
		{"a public client", "", []string{"client_secret_basic"}, false, ways{form}},
	} {
		if diff := cmp.Diff(c.want, styles(c.secret, c.methods, c.inForm)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
