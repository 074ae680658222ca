// Package venue says where a training whose workers exchange its model costs less: on hosts or in functions.
package venue
