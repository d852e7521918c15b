# To be sourced on the GPU machine, in the repository's root; again after each part of scratch/gpu that arrives.
#     source studies/gpu/setup.sh
# Packages and data go to $VIVI_HOME, outside the repository, and stay there; vivi is then `python3 -m vivi`.
export VIVI_HOME=${VIVI_HOME:-$HOME/vivi}
export PYTHONPATH=$PWD/src:$VIVI_HOME/packages
export PYTHONUNBUFFERED=1
mkdir -p "$VIVI_HOME"
if [ -d scratch/gpu/wheels ] && [ ! -d "$VIVI_HOME/packages" ]; then
    python3 -m pip install --quiet --no-index --no-deps --target "$VIVI_HOME/packages" scratch/gpu/wheels/*.whl
fi
for part in scratch/gpu/*/; do
    name=$(basename "$part")
    if [ "$name" != wheels ] && [ "$name" != "*" ]; then
        rm -rf "${VIVI_HOME:?}/$name"
        mv "$part" "$VIVI_HOME/$name"
    fi
done
