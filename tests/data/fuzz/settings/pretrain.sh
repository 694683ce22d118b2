torchrun --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 12 --hidden-size 768 # wide
  --use-flash-attn --lr 1e-4 --data-path "a b"
