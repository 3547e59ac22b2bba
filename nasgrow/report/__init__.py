"""Reports: records become tables, figures and pages."""
