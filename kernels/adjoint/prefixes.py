"""What the names of adjoints and tangents begin with: with `_nb_`, which no name of a user's may begin with."""

ADJOINT = "_nb_adj_"
TANGENT = "_nb_tan_"
