package flag

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
)

// mostSession bounds how long somebody stays signed in: what a session of today lasts.
const mostSession = 7 * 24 * time.Hour

// addSignIn adds the flags of the identity provider with which people sign in.
func addSignIn(to *signin.Options, flags *pflag.FlagSet) {
	to.GroupsClaim, to.Session = signin.UsualGroupsClaim, signin.UsualSession
	flags.StringVar(&to.Issuer, "oidc-issuer", "",
		"`URL` of an OpenID Connect provider with which people sign in, such as https://accounts.google.com (default none)")
	flags.StringVar(&to.ClientID, "oidc-client-id", "",
		"`ID` as what it knows this server; it must allow the redirect to https://SERVER/sign-in/callback")
	flags.StringVar(&to.ClientSecretFile, "oidc-client-secret-file", "",
		"`FILE` with the secret of that client (default none: a public client)")
	flags.StringArrayVar(&to.Scopes, "oidc-scope", nil,
		"`SCOPE` to ask it for; may be given several times (default openid, profile and email, and those of groups and "+
			"offline_access that it has)")
	flags.StringVar(&to.NameClaim, "oidc-name-claim", "",
		"`CLAIM` with what people are called (default email, else preferred_username, else sub)")
	flags.StringVar(&to.GroupsClaim, "oidc-groups-claim", to.GroupsClaim,
		"`CLAIM` with the groups that they are in, or the path to it, such as realm_access.roles")
	flags.Var(rules{&to.Roles}, "oidc-role",
		"`GROUP=ROLE`, or GROUP=ROLE:TEAM: what who is in a group may do; may be given several times, and the first counts "+
			"that somebody is in; * is everybody")
	flags.StringVar(&to.CAFile, "oidc-ca", "",
		"`FILE` of the certificates, in PEM, of who has signed the provider's (default those that this machine trusts)")
	flags.Var(Span{Value: &to.Session, most: mostSession}, "oidc-session", "how long somebody stays signed in at most")
	flags.StringVar(&to.Title, "oidc-title", "", "`NAME` of the provider on the page (default the host of the issuer)")
}

// SignIn is the identity provider that the flags name; nil for none. It has been asked nothing.
func (f *Stack) SignIn() (*signin.Options, error) {
	if f.signIn.Issuer == "" {
		return nil, nil //nolint:nilnil // none is named
	}
	options := f.signIn
	if err := options.Validate(); err != nil {
		return nil, f.placed(&fault.UsageError{
			Problem: err.Error(), Hint: "`spillway config check` tries what the settings name",
		})
	}
	return &options, nil
}

// rules say what who is in a group may do.
type rules struct{ value *[]signin.Rule }

var _ pflag.SliceValue = rules{}

// Set implements pflag.Value; it adds one.
func (r rules) Set(text string) error {
	rule, err := signin.ParseRule(text)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(*r.value, func(one signin.Rule) bool { return one.Group == rule.Group }) {
		return fmt.Errorf("%q: there is a rule for that group already, and the first counts", text)
	}
	*r.value = append(*r.value, rule)
	return nil
}

// String implements pflag.Value.
func (r rules) String() string {
	if r.value == nil || len(*r.value) == 0 {
		return ""
	}
	return fmt.Sprint(*r.value)
}

// Type implements pflag.Value.
func (rules) Type() string { return "GROUP=ROLE" }

// Append implements pflag.SliceValue.
func (r rules) Append(text string) error { return r.Set(text) }

// Replace implements pflag.SliceValue.
func (r rules) Replace(texts []string) error {
	before := *r.value
	*r.value = nil
	for _, text := range texts {
		if err := r.Set(text); err != nil {
			*r.value = before
			return err
		}
	}
	return nil
}

// GetSlice implements pflag.SliceValue.
func (r rules) GetSlice() []string {
	texts := make([]string, len(*r.value))
	for i, rule := range *r.value {
		texts[i] = rule.String()
	}
	return texts
}
