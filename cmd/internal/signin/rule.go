package signin

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/spillway-ml/spillway/activities/access"
)

// Everybody is the group of a Rule that is for all who sign in.
const Everybody = "*"

// Rule gives who is in a group a role, for a team.
type Rule struct {
	// Group is the name of a group as the identity provider says it, or Everybody.
	Group string
	// Role is "viewer", "operator" or "admin".
	Role string
	// Team is whose they are; empty is the default team.
	Team string
}

// ParseRule reads a rule: GROUP=ROLE or GROUP=ROLE:TEAM. A group may have "=" and ":" in it.
func ParseRule(text string) (Rule, error) {
	at := strings.LastIndex(text, "=")
	if at <= 0 {
		return Rule{}, fmt.Errorf("%q is no rule: write GROUP=ROLE or GROUP=ROLE:TEAM, such as ml-platform=admin", text)
	}
	rule := Rule{Group: text[:at]}
	rule.Role, rule.Team, _ = strings.Cut(text[at+1:], ":")
	if !slices.Contains(access.Roles(), rule.Role) {
		return Rule{}, fmt.Errorf("%q: %w: %q; choose among %s", text, access.ErrRole, rule.Role,
			strings.Join(access.Roles(), ", "))
	}
	if err := access.CheckTeam(rule.Team); err != nil {
		return Rule{}, fmt.Errorf("%q: %w", text, err)
	}
	return rule, nil
}

// String writes a rule as ParseRule reads it.
func (r Rule) String() string {
	text := r.Group + "=" + r.Role
	if r.Team != "" {
		text += ":" + r.Team
	}
	return text
}

// Person is who has signed in.
type Person struct {
	// Issuer and Subject say who it is in words that never change; Name is what people call them.
	Issuer, Subject, Name string
	// Role is "viewer", "operator" or "admin"; Team is empty for the default team.
	Role, Team string
}

// person says who it is of whom the provider claims this, and what the first rule gives that they are in. Whole says
// whether that is all that it claims of them.
func (o *Options) person(subject string, claims map[string]any, whole bool) (Person, error) {
	who := Person{Issuer: o.Issuer, Subject: subject, Name: o.name(subject, claims)}
	groups, there := groupsOf(claims, o.GroupsClaim)
	if verified, said := claims["email_verified"].(bool); o.GroupsClaim == "email" && (!said || !verified) {
		return who, fmt.Errorf("%w: the identity provider does not say that the address %s is verified, and "+
			"--oidc-groups-claim gives roles by it", ErrNoRole, shownGroups(groups))
	}
	whole = whole && !elsewhere(claims, o.GroupsClaim)
	for i, rule := range o.Roles {
		switch {
		case rule.Group != Everybody && slices.Contains(groups, rule.Group),
			rule.Group == Everybody && (there || countsUnsaid(rule, o.Roles[:i], whole)):
			who.Role, who.Team = rule.Role, rule.Team
			return who, nil
		}
	}
	switch {
	case !there:
		return who, o.unsaid(who.Name, claims)
	case len(groups) == 0:
		return who, fmt.Errorf("%w: %s is in no group; ask whoever runs the identity provider for one that --oidc-role "+
			"names", ErrNoRole, who.Name)
	}
	return who, fmt.Errorf("%w: %s is in %s, and --oidc-role names none of that; ask whoever runs this server", ErrNoRole,
		who.Name, shownGroups(groups))
}

// says says whether claims tell all that the rules go by.
func (o *Options) says(claims map[string]any) bool {
	_, there := groupsOf(claims, o.GroupsClaim)
	_, verified := claims["email_verified"].(bool)
	return there && (o.GroupsClaim != "email" || verified)
}

// countsUnsaid says whether the rule for everybody counts for who the provider says no groups of. Providers leave out
// the claim of who is in none. But where that is not all that it says, or is not set up, who is in a group of a rule
// before would have more than that rule gives, such as contractors who only read.
func countsUnsaid(everybody Rule, before []Rule, whole bool) bool {
	rank := func(rule Rule) int { return slices.Index(access.Roles(), rule.Role) }
	return len(before) == 0 || whole && !slices.ContainsFunc(before, func(one Rule) bool {
		return rank(one) < rank(everybody) || rank(one) == rank(everybody) && one.Team != everybody.Team
	})
}

// unsaid says that the provider does not say in which groups somebody is.
func (o *Options) unsaid(name string, claims map[string]any) error {
	if elsewhere(claims, o.GroupsClaim) {
		return fmt.Errorf("%w: the identity provider says that the groups of %s are elsewhere, where this server does not "+
			"ask (_claim_names has %q), as some do of who is in very many; have it say those that --oidc-role names",
			ErrNoRole, name, o.GroupsClaim)
	}
	return fmt.Errorf("%w: the identity provider says no groups of %s (there is no claim %q); "+
		"have it put them into the ID token or the answer of its userinfo endpoint (of an ID token that is shown, that "+
		"alone counts), or name the claim with --oidc-groups-claim", ErrNoRole, name, o.GroupsClaim)
}

// elsewhere says whether a claim is one to be asked for somewhere else (OpenID Connect Core 1.0, section 5.6.2).
func elsewhere(claims map[string]any, claim string) bool {
	names, _ := claims["_claim_names"].(map[string]any)
	_, is := names[claim]
	return is
}

// shownGroups are the first few groups.
func shownGroups(groups []string) string {
	const most = 5
	var shown []string
	for _, group := range groups[:min(len(groups), most)] {
		shown = append(shown, fmt.Sprintf("%.60q", group))
	}
	text := strings.Join(shown, ", ")
	if len(groups) > most {
		text += fmt.Sprintf(" and %d groups more", len(groups)-most)
	}
	return text
}

// name is what people call who it is: the claim that is configured, else the address, unless the provider says that it
// is not verified, the user name, and the subject where there is none of them.
func (o *Options) name(subject string, claims map[string]any) string {
	names := []string{o.NameClaim}
	if o.NameClaim == "" {
		names = []string{"email", "preferred_username"}
	}
	for _, claim := range names {
		text, _ := find(claims, claim).(string)
		if verified, said := claims["email_verified"].(bool); claim == "email" && said && !verified {
			continue
		}
		if text = clean(text); text != "" {
			return text
		}
	}
	return clean(subject)
}

// mostName bounds a name, in characters.
const mostName = 100

// printable leaves what can be shown in one line of a log.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(text, ""))
}

// clean is a printable name of bounded length.
func clean(text string) string {
	text = printable(text)
	if runes := []rune(text); len(runes) > mostName {
		text = string(runes[:mostName])
	}
	return strings.TrimSpace(text)
}

// groupsOf reads the claim of groups: a list of texts, or one text.
func groupsOf(claims map[string]any, claim string) (groups []string, there bool) {
	switch value := find(claims, claim).(type) {
	case string:
		return []string{value}, true
	case []any:
		for _, one := range value {
			if text, is := one.(string); is {
				groups = append(groups, text)
			}
		}
		return groups, true
	default:
		return nil, false
	}
}

// find returns a claim by its name, and where there is none of it by its path, such as realm_access.roles; nil where
// there is neither.
func find(claims map[string]any, name string) any {
	if value, there := claims[name]; there {
		return value
	}
	var value any = claims
	for part := range strings.SplitSeq(name, ".") {
		inner, is := value.(map[string]any)
		if !is {
			return nil
		}
		value = inner[part]
	}
	return value
}
